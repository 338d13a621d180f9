"""What a step does on the device: a batch's weights go out, and what its samples report comes in."""
