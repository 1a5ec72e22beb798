"""HTTP/2 as bytes: frames and header fields, for the server's RPCs and for the producers that call them."""
