"""Real tasks on real data, small enough for two cores; each is one file with a class ``Recipe``.

A recipe is a dataclass whose fields are its options, and which has the functions and settings of a
:class:`infobatch.lab.task.Task` as methods and attributes. If an option has the name of one of
these, its field has another name and declares the option: ``field(default="sgd",
metadata={"option": "optimizer"})``. Nothing is imported before it is needed.
"""
