"""Many runs and what they come to: which to make, as processes, in one folder."""
