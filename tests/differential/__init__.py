"""Whatever torch does with nn.BatchNorm2d, it can do with BatchGroupNorm2d.

``table`` collects the uses, the ``uses_*`` files define them, ``layers`` makes the layers that are
compared, ``child`` runs a use in a process of its own, ``compare`` says what must be equal.
"""
