"""Recipes: everything that decides what a run does, written beside its results.

A recipe is composed of parts, small dataclasses with flat fields. ``Recipe`` has those that every
experiment needs; an experiment's recipe adds the options that have an effect there, so that its
help lists no others and nothing else can change the identity of a run.
"""

from bgn_lab.recipe.norm import Center, GroupWord, NormOptions
from bgn_lab.recipe.options import (
    AmpOptions,
    CompileOptions,
    DecodingOptions,
    FolderOptions,
    MedianOptions,
    MomentumOptions,
    Schedule,
    ScheduleOptions,
    SGDOptions,
    StrideOptions,
    ValidationOptions,
    WidthOptions,
    WorkerOptions,
)
from bgn_lab.recipe.part import Part
from bgn_lab.recipe.parts import DataOptions, ModelOptions, OptimizerOptions, RuntimeOptions
from bgn_lab.recipe.recipe import NOT_IDENTITY, TRAINING, Damaged, Measure, Recipe

__all__ = [
    "NOT_IDENTITY",
    "TRAINING",
    "AmpOptions",
    "Center",
    "CompileOptions",
    "Damaged",
    "DataOptions",
    "DecodingOptions",
    "FolderOptions",
    "GroupWord",
    "Measure",
    "MedianOptions",
    "ModelOptions",
    "MomentumOptions",
    "NormOptions",
    "OptimizerOptions",
    "Part",
    "Recipe",
    "RuntimeOptions",
    "SGDOptions",
    "Schedule",
    "ScheduleOptions",
    "StrideOptions",
    "ValidationOptions",
    "WidthOptions",
    "WorkerOptions",
]
