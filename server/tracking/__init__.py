"""Trackers: MLflow, TensorBoard or Weights & Biases show a run beside others, where the setting `track` names one."""
