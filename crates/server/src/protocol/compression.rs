//! Compression of responses for clients that ask for it.
//!
//! Compressing a response takes longer than encoding it (about 80 MB/s for JSON numbers, which
//! shrink to half; 150 MB/s for raw ones, which shrink by a tenth). It is therefore done only on
//! request: over HTTP by `Accept-Encoding`; over gRPC if the call itself is compressed, since all
//! gRPC clients claim to accept compression. Short responses, responses that do not shrink, and
//! those without room in the budget are sent uncompressed.

use crate::limits::budget::{MemoryBudget, Reservation};
use crate::state::ServerState;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::HeaderMap;
use hyper::header::ACCEPT_ENCODING;
use std::io::{self, Write};
use std::sync::Arc;

/// Responses above this size are compressed by [`ServerState::run_cpu_bound`]. This size takes 0.2
/// ms, for which the thread's other connections wait.
const INLINE_BYTES: usize = 16 << 10;
/// Maximum number of encodings read from a header.
const MAX_ENCODINGS: usize = 16;

/// Encoding of a body or message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    /// The zlib format, as both protocols define "deflate".
    Deflate,
}

impl Encoding {
    /// Returns the encoding with this name; `None` if it is unknown.
    pub(crate) fn named(name: &[u8]) -> Option<Encoding> {
        match name.trim_ascii().to_ascii_lowercase().as_slice() {
            b"" | b"identity" => Some(Encoding::Identity),
            b"gzip" | b"x-gzip" => Some(Encoding::Gzip),
            b"deflate" => Some(Encoding::Deflate),
            _ => None,
        }
    }

    /// Returns the name used in headers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Encoding::Identity => "identity",
            Encoding::Gzip => "gzip",
            Encoding::Deflate => "deflate",
        }
    }
}

/// Returns the encoding that an HTTP client prefers; identity by default.
pub(crate) fn accepted(headers: &HeaderMap) -> Encoding {
    let mut best = (Encoding::Identity, 0.0);
    let values = headers.get_all(ACCEPT_ENCODING).iter().flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    for choice in values.take(MAX_ENCODINGS) {
        let mut parts = choice.split(|&byte| byte == b';');
        let Some(encoding) = parts.next().filter(|name| !name.trim_ascii().is_empty()).and_then(Encoding::named) else {
            continue;
        };
        let weight = parts.find_map(|part| part.trim_ascii().strip_prefix(b"q="));
        let weight = weight.map_or(Some(1.0), |weight| std::str::from_utf8(weight).ok()?.trim().parse::<f32>().ok());
        if let Some(weight) = weight.filter(|&weight| weight > best.1) {
            best = (encoding, weight);
        }
    }
    best.0
}

/// Compresses the bytes from `head` on, with `head` zero bytes before them; returns them with their
/// reservation. `None` if the result would not be smaller or there is no room.
pub(crate) async fn compress(
    state: &ServerState,
    budget: &Arc<MemoryBudget>,
    encoding: Encoding,
    plain: &Bytes,
    head: usize,
) -> Option<(Vec<u8>, Reservation)> {
    if encoding == Encoding::Identity || plain.len() <= state.config.compress_above {
        return None;
    }
    let (room, plain) = (budget.reserve(0).ok()?, plain.clone());
    let is_long = plain.len() > INLINE_BYTES;
    let work = move || {
        let mut smaller = BoundedWriter { bytes: Vec::new(), room, most: plain.len() };
        smaller.write_all(&plain[..head]).ok()?;
        smaller.bytes.fill(0);
        let plain = &plain[head..];
        let BoundedWriter { bytes, room, .. } = match encoding {
            Encoding::Gzip => compress_all(GzEncoder::new(smaller, Compression::fast()), plain, GzEncoder::finish),
            _ => compress_all(ZlibEncoder::new(smaller, Compression::fast()), plain, ZlibEncoder::finish),
        }?;
        Some((bytes, room))
    };
    if is_long { state.run_cpu_bound(work).await.ok()? } else { work() }
}

fn compress_all<W: Write>(
    mut encoder: W,
    plain: &[u8],
    finish: fn(W) -> io::Result<BoundedWriter>,
) -> Option<BoundedWriter> {
    encoder.write_all(plain).ok()?;
    finish(encoder).ok()
}

/// Writer that fails once its output reaches the input's size or the budget is exhausted.
struct BoundedWriter {
    bytes: Vec<u8>,
    room: Reservation,
    most: usize,
}

impl Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() >= self.most
            || self.room.grow(&mut self.bytes, bytes.len(), self.most).is_err()
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(header: &str) -> Encoding {
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT_ENCODING, header.parse().unwrap());
        accepted(&headers)
    }

    #[test]
    fn the_heaviest_that_is_known_is_taken_and_the_first_of_several() {
        use Encoding::{Deflate, Gzip, Identity};
        assert_eq!(accepted(&HeaderMap::new()), Identity);
        let choices = [
            ("gzip, deflate, br", Gzip),
            ("br;q=1.0, deflate;q=0.8 , GZIP; q=0.5", Deflate),
            ("x-gzip", Gzip),
            ("identity", Identity),
            ("identity;q=1, gzip;q=0.5", Identity),
            ("gzip;q=0, deflate;q=0", Identity),
            ("gzip;q=fast, deflate;q=0.1", Deflate),
            ("gzip;q=NaN", Identity),
            ("*, br, zstd", Identity),
            ("", Identity),
            (",;q=1,,", Identity),
        ];
        for (header, wanted) in choices {
            assert_eq!(accepts(header), wanted, "{header}");
        }
        assert_eq!(accepts(&format!("{}gzip", "br,".repeat(MAX_ENCODINGS))), Identity, "an endless header is not read");
    }
}
