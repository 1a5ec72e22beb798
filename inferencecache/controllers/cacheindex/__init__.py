"""The index poller: reads the server's snapshot and says in statuses what it means (spec 05 §7).

    snapshot       the server's document, decoded                                                   (pure)
    rates          rates as the text that statuses hold                                             (pure)
    index_status   the status of the one CacheIndex                                                 (pure)
    attribution    which CacheBackend each replica works for                                        (pure)
    participation  `status.indexParticipation` of a CacheBackend                                    (pure)
    tier2_series   the metrics of the second tier, one series per backend that uses it
    reconciler     the order of these, and the writes

A scrape that fails changes nothing: what was last known stays, and `status.lastUpdated` stops moving.
"""
