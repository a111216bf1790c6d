"""The MLflow registry: register, promote and roll back models; resolve references to them."""
