"""The method: how refinements with a higher reward constrain the policy. It needs neither verl nor the config."""
