"""Updates of PyTorch's optimizers, one file a family."""

from roundlog.capture.optimizers.adam import Adam, Adamax, NAdam, RAdam
from roundlog.capture.optimizers.averaging import ASGD
from roundlog.capture.optimizers.factored import Adafactor
from roundlog.capture.optimizers.orthogonal import Muon
from roundlog.capture.optimizers.scaled import Adadelta, Adagrad, RMSprop
from roundlog.capture.optimizers.sgd import SGD
from roundlog.capture.optimizers.signs import Rprop
from roundlog.capture.optimizers.update import Column, Tensors, Update

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "Adamax",
    "Column",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "Tensors",
    "Update",
]
