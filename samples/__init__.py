"""Short programs to read and to run: ``python -m samples.s01_send_and_receive [URL]``."""
