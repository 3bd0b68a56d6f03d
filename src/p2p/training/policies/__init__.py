"""Networks, their inputs, and the files that policies are saved in."""
