"""A scikit-learn model. Put `joblib.load(pathlib.Path(__file__).with_name("model.joblib"))` in place of `estimator`."""

import numpy as np
import ripieno
from sklearn.linear_model import LogisticRegression


def estimator():
    x = np.random.default_rng(1).standard_normal((200, 16))
    return LogisticRegression().fit(x, x[:, 0] > 0)


MODEL = estimator()


@ripieno.model(inputs={"x": ripieno.f64(16)}, outputs={"p": ripieno.f64(2)})
def serve(x):  # x: [batch, 16]
    return MODEL.predict_proba(x)
