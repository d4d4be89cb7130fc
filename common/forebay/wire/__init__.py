"""Bytes <-> objects for every frame that travels between the processes. Opens no socket, reads no clock.

A frame is one ZeroMQ message:

    kind u8 | version u8 | reserved u16 | header length u32 | msgpack header | raw little-endian columns

| kind     | from -> to                      | header                                   | columns            |
|----------|---------------------------------|------------------------------------------|--------------------|
| HELLO    | every role -> every other role  | Hello                                    |                    |
| WORK     | api -> tokenizer                | [lengths, [WorkItem]]                    | prompt ids, int64  |
| OPEN     | tokenizer -> detokenizer        | [OpenItem]                               |                    |
| ADMIT    | tokenizer -> engine             | [lengths, [RequestHead], [OpenItem]]     | prompt ids, int64  |
| EGRESS   | engine -> detokenizer           | positional, see `egress`                 | ids, families      |
| DELTAS   | detokenizer -> api              | positional, see `deltas`                 | ids                |
| ERROR    | tokenizer, detokenizer, engine -> api | [RequestFault]                     |                    |
| ABORT    | api, detokenizer -> engine; api -> tokenizer; api, tokenizer -> detokenizer; | [AbortRequest] |  |
|          | engine -> api                   |                                          |                    |
| CONTROL  | api -> every other role; engine -> api | ControlRequest                    |                    |
| REPLY    | every other role -> api         | ControlReply                             |                    |
| ADMITTED | tokenizer -> api                | [Admitted]                               |                    |
| STEP     | engine -> detokenizer           | fixed, see `steady`                      | ids                |
| TEXTS    | detokenizer -> api              | fixed, see `steady`                      | msgpack texts      |
| UNHEARD  | detokenizer -> api              | Unheard                                  |                    |
| CLAIM    | api -> engine                   | Claim, see `replay`                      |                    |
| REPLAY   | engine -> detokenizer           | Replay, see `replay`                     |                    |
| MARK, TAKEN | every role -> every other role | Mark                                   |                    |
| EMBEDDINGS | engine -> api                 | positional, see `embeddings`             | vectors, float32   |

A frame with another version is refused with `PeerError` on the side that reads it. Nothing is ever pickled.
"""

from __future__ import annotations

from forebay.wire.frames import VERSION, Kind, kind_of, open_frame, pack_frame

__all__ = ["VERSION", "Kind", "kind_of", "open_frame", "pack_frame"]
