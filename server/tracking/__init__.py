"""Trackers: MLflow, TensorBoard or Weights & Biases show a run next to others, if the setting `track` names one."""
