{{ config(materialized='table') }}

select community_id, level, count(*) as members
from {{ source('accord', 'members') }}
group by all
