"""Former path of `bert_model.inference.predict`.

A registered version is stored with its own copy of `registry/pyfunc.py`. Copies made before the modules moved into
rooms import this path, which must stay as long as such versions are to be loaded.
"""

from bert_model.inference.predict import answer_inputs as answer_records
from bert_model.inference.predict import load_predictor

__all__ = ["answer_records", "load_predictor"]
