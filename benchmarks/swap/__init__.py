"""Hundreds of swaps under steady streams: does any request suffer, and is every recorded version true?

::

    favourites   versions that each favour one token, as the learner ships them
    versions     version n ─► one of the made artifacts, under its own number
    replica      one replica of the policy endpoint in this process, and the registry's part for it
    streams      steady streams over HTTP; each answer is met with what was captured of it
    judge        which weights spoke; distances; growth of memory. Pure
    run          one mode: control, swaps, figures
"""
