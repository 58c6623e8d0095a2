"""The root keys of the communities that were founded here.

A root key is not a device key: it founds the community, changes its policy, and otherwise rests.
It lies in `communities/<display id>/root.ed25519`, readable by its owner only. Nodes that only
joined a community have no such file.
"""

import secrets
import shutil
from pathlib import Path
from typing import Final

from accord.community.envelope.names import display_id
from accord.community.errors import Code, CommunityError
from accord.kernel.files import sync_folder
from accord.kernel.signing import SigningKey

_ROOT: Final = "root.ed25519"


def community_folder(home: Path, community_id: str) -> Path:
    """Where a node keeps what belongs to one community."""
    return home / "communities" / display_id(community_id)


def create_root(home: Path) -> SigningKey:
    """Make the root key of a new community, and the community's folder with it.

    The folder appears whole or not at all.

    Raises:
        CommunityError: It cannot be written: `internal_error`.
    """
    communities = home / "communities"
    draft = communities / f".{secrets.token_hex(8)}"
    try:
        communities.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.mkdir(mode=0o700)
        try:
            key = SigningKey.create(draft / _ROOT)
            draft.rename(community_folder(home, key.id))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_folder(communities)
    except OSError as error:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the folder of the community cannot be made ({error.strerror})",
            where=str(communities),
            mend="let this user write to it",
        ) from error
    return key


def load_root(home: Path, community_id: str) -> SigningKey | None:
    """The root key of a community; None when it was not founded here.

    Raises:
        SigningError: The file is damaged, or others may read it.
        CommunityError: It is the key of another community: `internal_error`.
    """
    path = community_folder(home, community_id) / _ROOT
    if not path.exists():
        return None
    key = SigningKey.load(path)
    if key.id != community_id:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            "this is the root key of another community",
            where=str(path),
            mend="restore the folder from a backup",
        )
    return key
