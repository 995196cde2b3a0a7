"""What a client promises when the network or the server fails: real clients, real servers, a proxy between them."""
