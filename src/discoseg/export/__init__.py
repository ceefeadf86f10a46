"""Trained runs for other programs: one ONNX file, or a MONAI bundle; neither needs discoseg to run."""

from discoseg.export.bundle import export_bundle
from discoseg.export.onnx_file import export_onnx

__all__ = ["export_bundle", "export_onnx"]
