select
    stream,
    day,
    accepted + quarantined as records,
    quarantined / (accepted + quarantined) as share
from {{ source('accord', 'quality') }}
