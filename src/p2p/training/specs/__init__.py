"""What an environment is made of, read off the live one."""
