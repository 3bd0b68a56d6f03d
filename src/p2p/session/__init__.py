"""Session and iteration directories, and the loop over them."""
