"""Trained runs to label maps: images of any size and orientation in, masks of exactly their geometry out."""

from discoseg.predict.files import predict_files
from discoseg.predict.load import load_model
from discoseg.predict.model import Model, Prediction

__all__ = ["Model", "Prediction", "load_model", "predict_files"]
