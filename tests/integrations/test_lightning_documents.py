"""The examples of the Lightning and torchdata pages run."""

import pytest

from test_documents import examples, surroundings

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]


def test_lightning_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = surroundings(tmp_path)
    trained, data_module, fabric = examples("docs/lightning.md")
    exec(compile(trained, "lightning.md", "exec"), namespace)
    assert namespace["train_data"].savings.epochs[-1].epoch == 2
    assert "Saved" in capsys.readouterr().out
    exec(compile(data_module, "lightning.md", "exec"), namespace)
    model = namespace["Classifier"]()
    data = namespace["Data"]()
    data.setup("fit")
    namespace["train_data"] = data.train_data
    data.setup = lambda stage: None
    namespace["trainer"].fit(model, data)
    assert data.train_data.savings.saved > 0
    namespace.update({key: surroundings(tmp_path)[key] for key in ("model", "optimizer")})
    namespace["optimizer"].param_groups[0]["params"] = list(namespace["model"].parameters())
    exec(compile(fabric, "lightning.md", "exec"), namespace)
    assert len(namespace["train_data"].savings.epochs) == 3
    namespace["fabric"].load(namespace["checkpoint"], namespace["state"])


def test_torchdata_page(tmp_path):
    namespace = surroundings(tmp_path)
    (block,) = examples("docs/torchdata.md")
    exec(compile(block, "torchdata.md", "exec"), namespace)
    savings = namespace["train_data"].savings
    assert [epoch.epoch for epoch in savings.epochs] == [0, 1, 2]
    assert savings.made + savings.saved == 1200
