"""Asset checks: each reopens the artifact that it judges. Blocking ones stop what would waste a training."""

from workflows.lib import checks as registry
from workflows.lib import data_checks, model_checks

assert data_checks, model_checks  # imported for what they register
checks = registry.CHECKS
