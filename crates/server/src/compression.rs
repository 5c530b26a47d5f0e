//! Answers that are compressed because their client asked for that.
//!
//! Compressing an answer takes longer than encoding it (some 80 MB/s of JSON numbers, which become half as long; 150 MB/s of raw ones,
//! which become a tenth shorter), so it is done for who asks only: over HTTP by `Accept-Encoding`, over gRPC by compressing the call
//! itself, since all gRPC clients say that they accept it. Short answers are sent as they are, and so is what does not become
//! smaller, and what there is no room to compress.

use crate::bounds::budget::{Budget, Reservation};
use crate::state::State;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::HeaderMap;
use hyper::header::ACCEPT_ENCODING;
use std::io::{self, Write};
use std::sync::Arc;

/// What is longer is compressed by [`State::work`]: this takes 0.2 ms, for which all other connections of the thread wait.
const INLINE_BYTES: usize = 16 << 10;
/// The most of a header that is looked at; browsers send some thirty bytes.
const MAX_CHOICES: usize = 16;

/// How a body or message is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    /// In the format of zlib, as both protocols mean it.
    Deflate,
}

impl Encoding {
    /// The encoding of this name; none if it is not known.
    pub(crate) fn named(name: &[u8]) -> Option<Encoding> {
        match name.trim_ascii().to_ascii_lowercase().as_slice() {
            b"" | b"identity" => Some(Encoding::Identity),
            b"gzip" | b"x-gzip" => Some(Encoding::Gzip),
            b"deflate" => Some(Encoding::Deflate),
            _ => None,
        }
    }

    /// As headers name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Encoding::Identity => "identity",
            Encoding::Gzip => "gzip",
            Encoding::Deflate => "deflate",
        }
    }
}

/// What an HTTP client likes best; as it is where nothing else is asked for.
pub(crate) fn accepted(headers: &HeaderMap) -> Encoding {
    let mut best = (Encoding::Identity, 0.0);
    let values = headers.get_all(ACCEPT_ENCODING).iter().flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    for choice in values.take(MAX_CHOICES) {
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

/// The bytes from `head` on, compressed, behind as many zeros; with what they take reserved. None where it is not worth it, or there
/// is no room for it.
pub(crate) async fn compress(
    state: &State,
    budget: &Arc<Budget>,
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
        let mut smaller = Smaller { bytes: Vec::new(), room, most: plain.len() };
        smaller.write_all(&plain[..head]).ok()?;
        smaller.bytes.fill(0);
        let plain = &plain[head..];
        let Smaller { bytes, room, .. } = match encoding {
            Encoding::Gzip => all(GzEncoder::new(smaller, Compression::fast()), plain, GzEncoder::finish),
            _ => all(ZlibEncoder::new(smaller, Compression::fast()), plain, ZlibEncoder::finish),
        }?;
        Some((bytes, room))
    };
    if is_long { state.work(work).await.ok()? } else { work() }
}

fn all<W: Write>(mut encoder: W, plain: &[u8], finish: fn(W) -> io::Result<Smaller>) -> Option<Smaller> {
    encoder.write_all(plain).ok()?;
    finish(encoder).ok()
}

/// Takes bytes as long as they are fewer than there were before, and there is room for them.
struct Smaller {
    bytes: Vec<u8>,
    room: Reservation,
    most: usize,
}

impl Write for Smaller {
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
        assert_eq!(accepts(&format!("{}gzip", "br,".repeat(MAX_CHOICES))), Identity, "an endless header is not read");
    }
}
