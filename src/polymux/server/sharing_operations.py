"""What applications ask for to share a buffer with each other."""

from __future__ import annotations

from polymux.server.client_operations import MAX_GENERATION, MAX_OFFSET, MAX_SLOT
from polymux.server.grants import describe
from polymux.server.parts import Parts
from polymux.server.request import Operation, Request


def sharing_operations(parts: Parts) -> dict[str, Operation]:
    """Build the table of operations; all but the look-up may wait for tasks or copy much."""

    def export(request: Request) -> None:
        session, (slot, generation) = request.session, _buffer(request)

        def work() -> None:
            grant = parts.grants.export(session, slot, generation)
            request.answer({"token": grant.token}, [grant.fd])

        parts.later(request, work)

    def import_info(request: Request) -> None:
        request.answer(describe(parts.grants.find(request.text("token"))))

    def import_(request: Request) -> None:
        session, token = request.session, request.text("token")
        offset = request.number("offset", 0, MAX_OFFSET)
        slot, generation = _buffer(request)

        def work() -> None:
            grant = parts.grants.import_(session, token, offset, slot, generation)
            request.answer(describe(grant), [grant.fd])

        parts.later(request, work)

    def revoke(request: Request) -> None:
        parts.grants.revoke(request.session, request.text("token"))
        request.answer()

    def unshare(request: Request) -> None:
        session, (slot, generation) = request.session, _buffer(request)

        def work() -> None:
            parts.grants.unshare(session, slot, generation)
            request.answer()

        parts.later(request, work)

    return {
        "export": export,
        "import_info": import_info,
        "import": import_,
        "revoke": revoke,
        "unshare": unshare,
    }


def _buffer(request: Request) -> tuple[int, int]:
    return request.number("slot", 0, MAX_SLOT), request.number("generation", 0, MAX_GENERATION)
