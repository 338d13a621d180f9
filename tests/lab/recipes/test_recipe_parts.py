"""The parts that recipes are made of: mixing, augmentation, readers, metrics, conversions."""

import gzip
import json
import zipfile

import datasets
import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image
from torch.utils.data import Subset

from infobatch.lab.datasets import readers
from infobatch.lab.datasets.readers import Alpaca, CamVid, Cifar10, Covertype, Gsm8k, cifar10
from infobatch.lab.datasets.tensors import Tensors, column
from infobatch.lab.recipes import alpaca
from infobatch.lab.recipes.augmentation import shifted_and_flipped
from infobatch.lab.recipes.camvid import mean_iou, mirrored
from infobatch.lab.recipes.frechet import frechet_distance
from infobatch.lab.recipes.mae import (
    encode_whole,
    patches_of,
    ridge_classifier,
    standardised,
    with_constant,
)
from infobatch.lab.recipes.mixing import cutmix, mixup
from infobatch.lab.recipes.registry import load_recipe
from infobatch.lab.recipes.stories260k import BOS, FIRST_BYTE, Stories260K
from infobatch.lab.run.settings import settings_of
from infobatch.lab.run.training import Run
from infobatch.lab.task import as_task
from recipe_data import DATA, needs_data


def numbered_images(count, side=8):
    """Images whose every pixel has its own value, so that it is known wherever it turns up."""
    return torch.arange(1.0, 1 + count * 3 * side * side).view(count, 3, side, side)


# Reading a batch at once.


def test_tensors_read_at_once_are_those_read_singly():
    data = Tensors(torch.randn(20, 3), torch.arange(20))
    for got, index in zip(data.__getitems__([4, 0, 19]), [4, 0, 19], strict=True):
        assert torch.equal(got[0], data[index][0])
        assert got[1] == data[index][1]
    assert column(Subset(data, [3, 5, 7]), 1).tolist() == [3, 5, 7]


# Augmentation and mixing.


MOST = 4  # pixels


def test_shifts_and_flips():
    images = numbered_images(200)
    changed = shifted_and_flipped(images, MOST, fill=9.0)
    padded = torch.nn.functional.pad(images, [MOST] * 4, value=9.0)
    seen = set()
    for before, after in zip(padded, changed, strict=True):
        result = [
            (top, left, flip)
            for top in range(2 * MOST + 1)
            for left in range(2 * MOST + 1)
            for flip in (False, True)
            if torch.equal(
                before[:, top : top + 8, left : left + 8].flip(2)
                if flip
                else before[:, top : top + 8, left : left + 8],
                after,
            )
        ]
        assert result, "each image is a crop of itself"
        seen.update(result)
    assert {flip for _, _, flip in seen} == {False, True}
    assert {top for top, _, _ in seen} == set(range(2 * MOST + 1))
    assert {left for _, left, _ in seen} == set(range(2 * MOST + 1))


def test_scenes_are_mirrored_with_their_masks():
    images = numbered_images(40)
    masks = images[:, 0].clone()
    flipped, flipped_masks = mirrored(images, masks)
    assert torch.equal(flipped[:, 0], flipped_masks)
    assert 0 < int((flipped != images).flatten(1).any(1).sum()) < 40


def test_mixup():
    images = torch.randn(50, 3, 4, 4)
    mixed = mixup(images, alpha=1.0)
    assert sorted(mixed.partners.tolist()) == list(range(50))
    assert ((mixed.lam >= 0) & (mixed.lam <= 1)).all()
    for k in range(50):
        lam, partner = mixed.lam[k], images[mixed.partners[k]]
        torch.testing.assert_close(mixed.images[k], lam * images[k] + (1 - lam) * partner)
    assert len(set(mixed.lam.tolist())) > 40, "each image has a weight of its own"


def test_cutmix():
    images = numbered_images(100)
    mixed = cutmix(images)
    assert sorted(mixed.partners.tolist()) == list(range(100))
    for k in range(100):
        if mixed.partners[k] == k:
            continue
        kept = mixed.images[k] == images[k]
        assert torch.equal(mixed.images[k][~kept], images[mixed.partners[k]][~kept])
        assert kept[0].float().mean() == mixed.lam[k], "the weight is the share of pixels kept"
        pasted = (~kept[0]).nonzero()
        if len(pasted):
            height, width = (pasted.amax(0) - pasted.amin(0) + 1).tolist()
            assert height * width == len(pasted), "a rectangle"
    assert 0.3 < mixed.lam.mean() < 0.8


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "lamb"])
@pytest.mark.parametrize("mix", ["none", "mixup", "cutmix"])
def test_every_optimizer_learns(name, mix):
    recipe = load_recipe("fashion", options={"optimizer": name, "mix": mix})
    train, _ = recipe.data()
    model = recipe.model()
    optimizer = recipe.optimizer(model, recipe.learning_rate / 2)
    assert [group["weight_decay"] > 0 for group in optimizer.param_groups] == [True, False]
    losses = []
    for step in range(40):
        batch = train[step * 64 : step * 64 + 64]
        result = recipe.losses(model, batch)
        assert result.losses.shape == result.scores.shape == (64,)
        result.losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(result.losses.mean().item())
    assert np.mean(losses[-5:]) < np.mean(losses[:3]) - 0.2


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("min_snr", ["0", "5"])
def test_diffusion_predictions(prediction, min_snr):
    recipe = load_recipe("diffusion", options={"prediction": prediction, "min_snr": min_snr})
    train, _ = recipe.data()
    model = recipe.model()
    assert model.scheduler.config.prediction_type == prediction
    first = recipe.losses(model, train[:16])
    assert first.scores.isnan().all(), "nothing is known of any timestep yet"
    result = [recipe.losses(model, train[:64]) for _ in range(3)][-1]
    assert result.scores.isfinite().any()
    assert not torch.equal(result.scores.nan_to_num(), result.losses.detach())
    result.losses.mean().backward()
    restored = recipe.model()
    restored.load_state_dict(model.state_dict())
    state, again = model.timestep_means.state_dict(), restored.timestep_means.state_dict()
    assert all(torch.equal(state[name], again[name]) for name in state)
    assert state["weights"].sum() > 0


# Metrics.


def test_mean_iou_by_hand():
    confusion = torch.tensor([[3, 1, 0], [2, 4, 0], [0, 0, 0]])
    assert mean_iou(confusion) == pytest.approx((3 / 6 + 4 / 7) / 2), "no class 2 anywhere"


def test_frechet_distance_against_scipy():
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(300, 6, generator=generator, dtype=torch.float64)
    second = torch.randn(200, 6, generator=generator, dtype=torch.float64) @ torch.randn(
        6, 6, generator=generator, dtype=torch.float64
    )
    covariance, other = np.cov(first.numpy().T), np.cov(second.numpy().T)
    means = (first.mean(0) - second.mean(0)).square().sum().item()
    root = scipy.linalg.sqrtm(covariance @ other).real
    expected = means + np.trace(covariance + other - 2 * root)
    assert frechet_distance(first, second) == pytest.approx(expected, rel=1e-6)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-6)


def test_ridge_classifier_separates_what_can_be_separated():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 10
    features = torch.eye(10, dtype=torch.float64)[labels] + 0.1 * torch.randn(
        200, 10, generator=generator, dtype=torch.float64
    )
    result = (with_constant(features) @ ridge_classifier(features, labels)).argmax(1)
    assert torch.equal(result, labels)


# The masked autoencoder, against transformers' own loss.


@needs_data("mae")
def test_mae_losses_and_features():
    recipe = load_recipe("mae", data=DATA, smoke=True)
    train, _ = recipe.data()
    model = recipe.model().eval()
    images = train[:8][0]
    pixels = standardised(images)
    for fixed in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        assert len(fixed[0].unique(dim=0)) == 65, "every place has its own"
        assert not fixed.requires_grad
    assert torch.equal(patches_of(pixels), model.patchify(pixels))
    torch.manual_seed(3)
    flips = torch.rand(8) < 0.5
    mirrored_pixels = standardised(torch.where(flips.view(-1, 1, 1, 1), images.flip(3), images))
    expected = model(mirrored_pixels).loss
    torch.manual_seed(3)
    result = recipe.losses(model, (images, None))
    torch.testing.assert_close(result.losses.mean(), expected)

    whole = encode_whole(model, pixels)
    model.config.mask_ratio = 0.0
    in_order = torch.arange(64.0).expand(8, -1)
    torch.testing.assert_close(whole, model.vit(pixels, noise=in_order).last_hidden_state)


def test_the_probe_of_mae_sees_nothing_that_is_measured(tmp_path):
    """Not with a validation split, either, which is a part of the training set."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        records = generator.integers(0, 256, (600, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
    recipe = load_recipe("mae", data=tmp_path, smoke=True)
    task = as_task("mae", recipe)

    def images(data):
        return {image.numpy().tobytes() for image in column(data, 0)}

    published = {image.tobytes() for image in Cifar10(tmp_path).train(600)[0]}
    for validation in (False, True):
        settings = settings_of(task, arm="full", seed=0, smoke=True, validation=validation)
        run = Run(task, settings, tmp_path / "run")
        probe = images(recipe.probe_train)
        assert len(probe) == 256
        assert probe < published, "training images, by the published split"
        assert not probe & images(run.test_set)
        assert not probe & images(run.train_set)
        assert 0 <= task.evaluate(run.model, run.test_set) <= 100
    assert images(run.test_set) < published, "the validation split is one of the training images"


# stories260K and its tokenizer.


@needs_data("alpaca")
def test_the_converted_model_tells_stories():
    source = Stories260K(DATA)
    model, tokenizer = source.model().eval(), source.tokenizer()
    assert sum(parameter.numel() for parameter in model.parameters()) == 260_032
    sentence = "Once upon a time, there was a little dog. He liked to run and play in the park."
    tokens = torch.tensor([[BOS, *tokenizer.encode(sentence)]])
    untrained = type(model)(model.config).eval()
    with torch.no_grad():
        assert model(input_ids=tokens, labels=tokens).loss < 1.5
        assert untrained(input_ids=tokens, labels=tokens).loss > 5
        story = torch.tensor([[BOS]])
        for _ in range(60):
            story = torch.cat([story, model(input_ids=story).logits[:, -1:].argmax(-1)], 1)
    # The sample that llama2.c documents for this model.
    assert tokenizer.decode(story[0].tolist()).startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    )


def slow_tokens(tokenizer, text):
    """llama2.c's way: the best pair of the whole text, again and again."""
    numbers = []
    for character in f" {text}":
        code = character.encode()
        known = tokenizer.numbers.get(code)
        numbers += [known] if known is not None else [byte + FIRST_BYTE for byte in code]
    while True:
        best = None
        for place in range(len(numbers) - 1):
            pair = tokenizer.tokens[numbers[place]] + tokenizer.tokens[numbers[place + 1]]
            merged = tokenizer.numbers.get(pair)
            if merged is not None and (best is None or tokenizer.scores[merged] > best[0]):
                best = (tokenizer.scores[merged], place, merged)
        if best is None:
            return numbers
        numbers[best[1] : best[1] + 2] = [best[2]]


@needs_data("alpaca")
@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time, there was a little girl named Lily.",
        "  two  spaces, \n\nnew lines\tand a tab ",
        "naïve façade – 你好 🙂",
        "<0x0A> and <s> are no tokens in a text",
        "x",
    ],
)
def test_tokenizer(text):
    tokenizer = Stories260K(DATA).tokenizer()
    numbers = tokenizer.encode(text)
    assert numbers == slow_tokens(tokenizer, text)
    assert tokenizer.decode([BOS, *numbers]) == text
    assert tokenizer.encode("") == []


@needs_data("alpaca")
def test_a_truncated_checkpoint_raises(tmp_path):
    source = DATA / "stories260K"
    (tmp_path / "stories260K").mkdir()
    content = (source / "stories260K.bin").read_bytes()
    (tmp_path / "stories260K" / "stories260K.bin").write_bytes(content + bytes(400))
    with pytest.raises(ValueError, match="has 264,228 weights where its header needs 264,128"):
        Stories260K(tmp_path).model()


@needs_data("alpaca")
@pytest.mark.parametrize(("rows", "size"), [("random_9k", 9229), ("dq_k5_1k", 1000)])
def test_alpaca_rows(rows, size):
    recipe = load_recipe("alpaca", data=DATA, options={"rows": rows})
    train, test = recipe.data()
    assert (len(train), len(test)) == (size, 1000)
    tokens, labels = train[0]
    answer = labels != -100
    first = int(answer.nonzero()[0])
    assert not answer[:first].any()
    assert torch.equal(labels[first:], tokens[first:])
    assert recipe.tokenizer.decode(tokens[:first].tolist()).endswith(" \nAnswer:")
    assert all(len(tokens) <= 192 and (labels != -100).any() for tokens, labels in train.samples)

    held_out = {recipe.show(test, index) for index in range(len(test))}
    trained_on = {
        recipe.tokenizer.decode(recipe.encode(alpaca.exchange(row))[0].tolist())
        for row in recipe.source.rows()
        if {"random_9k", "dq_k5_1k"} & set(row["src"])
    }
    assert len(held_out - trained_on) > 0.99 * len(held_out), "but for rows that differ at the end"


@needs_data("gsm8k")
def test_gsm8k_rows():
    recipe = load_recipe("gsm8k", data=DATA)
    train, test = recipe.data()
    assert (len(train), len(test), recipe.epochs) == (7473, 1000, 3)
    first = recipe.show(train, 0)
    assert first.startswith("Question: Natalia sold clips to 48 of her friends in April")
    assert "Natalia sold 48/2 = 24 clips in May." in first
    assert first.endswith("#### 72")
    shown = {recipe.show(train, index) for index in range(len(train))}
    assert not any(recipe.show(test, index) in shown for index in range(len(test)))
    assert all((labels != -100).any() for _, labels in train.samples)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_data(name)) for name in ("alpaca", "gsm8k")]
)
def test_answers_count_for_themselves(name):
    """Neither a row's loss nor its score depends on what else is in the batch, or on the padding."""
    recipe = load_recipe(name, data=DATA, options={"count": "40", "epochs": "2"})
    train, test = recipe.data()
    assert (len(train), len(test), recipe.epochs) == (40, 1000, 2)
    model = recipe.model().eval()
    of_batch = recipe.losses(model, recipe.collate([train[index] for index in range(40)]))
    alone = [recipe.losses(model, recipe.collate([train[index]])) for index in range(40)]
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(
        of_batch.scores, torch.cat([single.scores for single in alone]), **close
    )
    torch.testing.assert_close(
        of_batch.losses, torch.cat([single.losses for single in alone]), **close
    )
    # Over the whole set, the mean is that of all tokens, as evaluate() has it.
    assert of_batch.losses.mean().item() == pytest.approx(recipe.evaluate(model, train), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": "-1"}, "count=-1, expected an integer >= 0; 0 is the default."),
        ({"epochs": "-2"}, "epochs=-2, expected an integer >= 0; 0 is the default."),
        ({"count": "7474"}, "count=7474 is more than the 7,473 rows that there are."),
    ],
)
@needs_data("gsm8k")
def test_sizes_that_raise(options, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        load_recipe("gsm8k", data=DATA, options=options).data()
    assert str(caught.value) == message


@needs_data("alpaca")
def test_published_alpaca(tmp_path):
    """The files of the two repositories give the same rows in the same order as the one file."""
    rows = Alpaca(DATA).rows()
    (tmp_path / "alpaca").mkdir()
    for subset, name in readers.ALPACA_SUBSETS.items():
        published = [
            {part: row[part] for part in ("instruction", "input", "output")}
            for row in rows
            if subset in row["src"]
        ]
        (tmp_path / "alpaca" / name).write_text(json.dumps(published))
    names = list(readers.ALPACA_SUBSETS)
    expected = [
        {**row, "src": [name for name in row["src"] if name in names]}
        for row in rows
        if set(row["src"]) & set(names)
    ]
    assert Alpaca(tmp_path).rows() == expected
    (tmp_path / "stories260K").symlink_to(DATA / "stories260K")
    for chosen in ("random_9k", "dq_k5_1k"):
        ours = load_recipe("alpaca", data=DATA, smoke=True, options={"rows": chosen}).data()
        theirs = load_recipe("alpaca", data=tmp_path, smoke=True, options={"rows": chosen}).data()
        for our, their in zip(ours, theirs, strict=True):
            assert all(torch.equal(a[0], b[0]) for a, b in zip(our, their, strict=True))


@needs_data("gsm8k")
def test_published_gsm8k(tmp_path):
    (tmp_path / "gsm8k").mkdir()
    content = gzip.decompress((DATA / "gsm8k" / "test.jsonl.gz").read_bytes())
    (tmp_path / "gsm8k" / "test.jsonl").write_bytes(content)
    assert Gsm8k(tmp_path).rows("test") == Gsm8k(DATA).rows("test")
    with pytest.raises(FileNotFoundError, match=r"'train.jsonl.gz' is missing: .*openai"):
        Gsm8k(tmp_path).rows("train")


def test_an_incomplete_folder_of_alpaca_says_what_is_missing(tmp_path):
    (tmp_path / "alpaca").mkdir()
    (tmp_path / "alpaca" / "alpaca_data_dq_k5_1k.json").write_text("[]")
    with pytest.raises(
        FileNotFoundError, match=r"'alpaca_data_dq_k5_5k.json' is missing: .*github"
    ):
        Alpaca(tmp_path)


# Readers: the published forms of the sets give what the folder's own form gives.


@needs_data("covertype")
def test_covertype_split():
    recipe = load_recipe("covertype", data=DATA)
    train, test = recipe.data()
    assert len(train) + len(test) == 581_012
    assert not set(train.rows) & set(test.rows)
    features, classes = recipe.collate(train.__getitems__(list(range(len(train)))))
    torch.testing.assert_close(features[:, :10].mean(0), torch.zeros(10), atol=1e-3, rtol=0)
    torch.testing.assert_close(features[:, :10].std(0), torch.ones(10), atol=1e-3, rtol=0)
    assert classes.unique().tolist() == list(range(7))
    again, _ = load_recipe("covertype", data=DATA).data()
    assert again.rows == train.rows, "one split for all"


@needs_data("covertype")
def test_published_covertype(tmp_path):
    features, classes = Covertype(DATA).table()
    assert features.shape == (581_012, 54)
    rows = np.column_stack([features[:500], classes[:500] + 1]).astype(int)
    with gzip.open(tmp_path / "covtype.data.gz", "wt") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)
    published_features, published_classes = Covertype(tmp_path).table()
    assert np.array_equal(published_features, features[:500])
    assert np.array_equal(published_classes, classes[:500])


@needs_data("cifar10")
def test_published_cifar10(tmp_path):
    ours = Cifar10(DATA)
    images, labels = ours.train(10_500)
    assert images.shape == (10_500, 3, 32, 32)
    assert labels[:5].tolist() == [6, 9, 9, 4, 1], "frog, truck, truck, deer, automobile"
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, part in (("data_batch_1.bin", slice(0, 400)), ("test_batch.bin", slice(400, 500))):
        records = np.column_stack([labels[part], images[part].reshape(-1, 3072)])
        (folder / name).write_bytes(records.astype(np.uint8).tobytes())
    published = Cifar10(tmp_path)
    assert np.array_equal(published.train(300)[0], images[:300])
    assert np.array_equal(published.train(300)[1], labels[:300])
    assert np.array_equal(published.test()[0], images[400:500])


def test_cifar10_of_the_hub(tmp_path, monkeypatch):
    """Read by the real datasets library, from a repository of the hub's form on this disk."""
    monkeypatch.setattr(readers, "HUB_CIFAR10", str(tmp_path / "repository"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pixels = np.random.default_rng(0).integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
    features = datasets.Features(img=datasets.Image(), label=datasets.ClassLabel(10))
    for split, part in (("train", slice(0, 20)), ("test", slice(20, 30))):
        rows = {"img": [Image.fromarray(image) for image in pixels[part]]}
        rows["label"] = [number % 10 for number in range(len(rows["img"]))]
        path = tmp_path / "repository" / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
    source = cifar10(None, "hub")
    images, labels = source.train(15)
    assert np.array_equal(images, pixels[:15].transpose(0, 3, 1, 2))
    assert labels.tolist() == [*range(10), *range(5)]
    assert np.array_equal(source.test()[0], pixels[20:].transpose(0, 3, 1, 2))
    with pytest.raises(ValueError, match="source='web' is not one of folder, hub"):
        cifar10(None, "web")


def test_both_forms_of_camvid(tmp_path):
    generator = np.random.default_rng(0)
    zipped, published = tmp_path / "zipped", tmp_path / "published"
    zipped.mkdir()
    for split in ("train", "trainannot"):
        (published / "CamVid" / split).mkdir(parents=True)
    with zipfile.ZipFile(zipped / "camvid_240x180.zip", "w") as archive:
        for number in range(3):
            # Blocks of 2 × 2 equal pixels: halving is exact.
            small = generator.integers(0, 256, (180, 240, 3), dtype=np.uint8)
            mask = generator.integers(0, 12, (180, 240), dtype=np.uint8)
            name = f"{number}.png"
            large = small.repeat(2, 0).repeat(2, 1)
            Image.fromarray(large).save(published / "CamVid" / "train" / name)
            large_mask = Image.fromarray(mask.repeat(2, 0).repeat(2, 1))
            large_mask.save(published / "CamVid" / "trainannot" / name)
            for folder, pixels in (("train", small), ("trainannot", mask)):
                path = tmp_path / name
                Image.fromarray(pixels).save(path)
                archive.write(path, f"{folder}/{name}")
    for count in (None, 2):
        images, masks = CamVid(zipped).split("train", count)
        same_images, same_masks = CamVid(published).split("train", count)
        assert images.shape == (count or 3, 3, 180, 240)
        assert np.array_equal(images, same_images)
        assert np.array_equal(masks, same_masks)


@needs_data("camvid")
def test_void_counts_for_nothing():
    recipe = load_recipe("camvid", data=DATA, smoke=True)
    train, _ = recipe.data()
    images, masks = train[:4]
    model = recipe.model().eval()
    some = Tensors(images, masks)
    void = masks.clone()
    void[:, :, ::2] = 11
    half = recipe.evaluate(model, Tensors(images, void))
    assert half != recipe.evaluate(model, some)
    logits = model((images.float() - 104) / 70)[0]
    result = logits.argmax(1)
    counted = void != 11
    ious = []
    for label in range(11):
        is_label, is_found = (void == label) & counted, (result == label) & counted
        if (is_label | is_found).any():
            ious.append(((is_label & is_found).sum() / (is_label | is_found).sum()).item())
    assert half == pytest.approx(100 * np.mean(ious), rel=1e-5)
