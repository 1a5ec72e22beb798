"""How the controller talks to the cache server: what every loop towards it shares.

    client    one request with a bearer token that is read anew each time, a deadline, and one type of error
    push      documents that take the place of the one before: sent when they differ, and again every interval
    telling   a push, and then the statuses of what was pushed
    served    the conditions in those statuses                                     (pure)
    server    where the server is, and which token each of its paths takes
    fan_out   many writes to the API server at once, each failing on its own

The server keeps nothing over a restart that it could not be told again, so every loop repeats what it says. None of
them may hold up another: each has its own queue, and a dead server costs each request one deadline (decision F3).
"""
