"""Functions on the normalizers of a whole model, such as convert, fold, freeze and recalibrate."""
