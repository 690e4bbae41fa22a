//! Reads bodies within two limits: the size per request, and the memory for all requests' bodies.

use std::{mem, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    http::{
        HeaderMap, Method,
        header::{CONTENT_LENGTH, EXPECT},
    },
};
use http_body_util::BodyExt;
use memmap2::MmapMut;

use super::{
    body_memory::RequestMemory,
    content_encoding::{ContentEncoding, too_long},
    context::Context,
    rejection::Rejection,
};
use crate::service::{app::App, models::caller_models::CallerModels};
use kivu::{Error, backend::Deadline};

/// The limit for methods other than POST, which need no permit: no route reads more from them than a form with a word.
const MAX_BYTES_WITHOUT_PERMIT: usize = 1024;

/// A body that was read, and its request.
pub struct ReadBody {
    pub context: Context,
    pub headers: HeaderMap,
    /// Decompressed.
    pub bytes: Vec<u8>,
}

/// Reads a request body.
pub async fn read(app: &Arc<App>, request: Request) -> Result<ReadBody, Rejection> {
    let deadline = Deadline::within(app.limits.timeout());
    // A platform that ends the process at a fixed time, like Lambda, sets its own deadline.
    let deadline = match request.extensions().get::<Deadline>() {
        Some(platform) => deadline.or_earlier(*platform),
        None => deadline,
    };
    let (parts, body) = request.into_parts();
    let models = CallerModels::of_request(app, &parts.extensions)?;
    let context = Context {
        response_limit: parts.extensions.get().copied(),
        ..Context::new(app, models, deadline)
    };
    let limit = match parts.method {
        Method::POST => app.limits.body_bytes,
        _ => app.limits.body_bytes.min(MAX_BYTES_WITHOUT_PERMIT),
    };
    let encoding = ContentEncoding::of(&parts.headers)?;
    if let Some(announced) = announced(&parts.headers).filter(|bytes| *bytes > limit as u64) {
        return Err(Error::too_large(format!(
            "expected a body of at most {limit} bytes, but found a `content-length` of {announced}"
        ))
        .into());
    }
    let memory = &context.memory;
    let mut bytes = deadline.bound(collect(body, limit, memory)).await?;
    if encoding != ContentEncoding::Identity {
        // The limit applies to the compressed and to the decompressed body.
        memory.resize(bytes.len() + limit)?;
        bytes = deadline
            .off_thread(move || encoding.decode(bytes, limit))
            .await?;
        memory.resize(bytes.capacity())?;
    }
    Ok(ReadBody {
        context,
        headers: parts.headers,
        bytes,
    })
}

/// Announced body length, if the client sends the body after `100 Continue` only, as curl does above one megabyte.
fn announced(headers: &HeaderMap) -> Option<u64> {
    let is_pending = headers
        .get(EXPECT)?
        .as_bytes()
        .eq_ignore_ascii_case(b"100-continue");
    let length = headers.get(CONTENT_LENGTH).filter(|_| is_pending)?;
    length.to_str().ok()?.parse().ok()
}

/// The whole body.
///
/// A refused body is read on for a while and discarded: most clients read a response only after they have sent their
/// request, and would see a broken connection instead.
async fn collect(mut body: Body, limit: usize, memory: &RequestMemory) -> Result<Vec<u8>, Error> {
    /// How much is read, as a multiple of the limit.
    const MAX_DISCARDED: usize = 4;
    let (mut blocks, mut found, mut refusal) = (Blocks::default(), 0_usize, None);
    while let Some(frame) = body.frame().await {
        let truncated = |_| Error::malformed("the body is incomplete");
        let Ok(data) = frame.map_err(truncated)?.into_data() else {
            continue;
        };
        found = found.saturating_add(data.len());
        if found > limit.saturating_mul(MAX_DISCARDED) {
            break;
        }
        if refusal.is_none() {
            let added = if found > limit {
                Err(too_long(limit))
            } else {
                blocks.add(&data, memory)
            };
            if let Err(error) = added {
                refusal = Some(error);
                blocks = Blocks::default();
                memory.resize(0)?;
            }
        }
    }
    refusal.map_or_else(|| blocks.into_bytes(memory), Err)
}

/// Bytes of a body that is being read. Equal-sized blocks leave no holes in memory, unlike a list that grows.
#[derive(Default)]
struct Blocks {
    blocks: Vec<Block>,
    size: usize,
    capacity: usize,
}

impl Blocks {
    /// Adds bytes, whose memory the request holds first.
    fn add(&mut self, mut data: &[u8], memory: &RequestMemory) -> Result<(), Error> {
        while !data.is_empty() {
            if self.size == self.capacity {
                let block = self.size.max(data.len()).min(MAX_BLOCK_BYTES);
                memory.resize(self.capacity + block)?;
                self.capacity += block;
                self.blocks.push(Block::new(block)?);
            }
            let (now, rest) = data.split_at(data.len().min(self.capacity - self.size));
            self.blocks
                .last_mut()
                .into_iter()
                .for_each(|block| block.extend(now));
            self.size += now.len();
            data = rest;
        }
        Ok(())
    }

    fn into_bytes(mut self, memory: &RequestMemory) -> Result<Vec<u8>, Error> {
        if let [Block::Allocated(bytes)] = self.blocks.as_mut_slice() {
            return Ok(mem::take(bytes));
        }
        memory.resize(self.capacity + self.size)?;
        let mut bytes = Vec::with_capacity(self.size);
        self.blocks
            .into_iter()
            .for_each(|block| bytes.extend_from_slice(block.bytes()));
        memory.resize(bytes.len())?;
        Ok(bytes)
    }
}

const MAX_BLOCK_BYTES: usize = 64 * 1024;

/// A part of a body.
enum Block {
    Allocated(Vec<u8>),
    /// A map and its used bytes. The system gets maps back at once; the allocator would keep hundreds of megabytes
    /// after a burst of large bodies.
    Mapped(MmapMut, usize),
}

impl Block {
    fn new(capacity: usize) -> Result<Self, Error> {
        if capacity < MAX_BLOCK_BYTES {
            return Ok(Self::Allocated(Vec::with_capacity(capacity)));
        }
        let map = MmapMut::map_anon(capacity)
            .map_err(Error::io("cannot get memory for a request's body"))?;
        Ok(Self::Mapped(map, 0))
    }

    /// Adds bytes for which there is space.
    fn extend(&mut self, bytes: &[u8]) {
        match self {
            Self::Allocated(block) => block.extend_from_slice(bytes),
            Self::Mapped(map, used) => {
                map[*used..*used + bytes.len()].copy_from_slice(bytes);
                *used += bytes.len();
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Allocated(bytes) => bytes,
            Self::Mapped(map, used) => &map[..*used],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bodies::body_memory::BodyMemory;
    use kivu::config::Limits;

    fn limits() -> Limits {
        Limits {
            body_bytes: 1024 * 1024,
            buffer_bytes: 64 * 1024 * 1024,
            ..Limits::default()
        }
    }

    #[tokio::test]
    async fn a_body_holds_its_memory_while_it_is_read() {
        let memory = BodyMemory::new(&limits());
        let (sender, receiver) =
            futures::channel::mpsc::unbounded::<Result<Vec<u8>, std::io::Error>>();
        let of_request = memory.request();
        let before = memory.free_kib();
        {
            let collected = collect(Body::from_stream(receiver), 1024 * 1024, &of_request);
            tokio::pin!(collected);
            for sent in [1, 100_000, 300_000, 300_000] {
                sender.unbounded_send(Ok(vec![b' '; sent])).unwrap();
                assert!(futures::poll!(&mut collected).is_pending());
            }
            let held = before - memory.free_kib();
            assert!((684..=684 + 64).contains(&held), "{held} KiB");
            // Beyond the limit, nothing is kept.
            sender.unbounded_send(Ok(vec![b' '; 600_000])).unwrap();
            assert!(futures::poll!(&mut collected).is_pending());
            assert_eq!(memory.free_kib(), before);
            drop(sender);
            assert!(matches!(collected.await, Err(Error::TooLarge { .. })));
        }
        let pieces: Vec<Vec<u8>> = (0..500_u32)
            .map(|piece| piece.to_le_bytes().repeat(100))
            .collect();
        let body = Body::from_stream(futures::stream::iter(
            pieces.clone().into_iter().map(Ok::<_, std::io::Error>),
        ));
        assert_eq!(
            collect(body, 1024 * 1024, &of_request).await.unwrap(),
            pieces.concat()
        );
        assert_eq!(before - memory.free_kib(), 200_000_usize.div_ceil(1024));
        drop(of_request);
        assert_eq!(memory.free_kib(), before);
    }
}
