//! Memory budget for all requests' bodies, and the part that each request holds.

use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use kivu::{Error, config::Limits, json, locked};

/// Less is not counted, so that short requests are served while long ones fill the memory.
const MAX_UNCOUNTED_BYTES: usize = 16 * 1024;
const BYTES_PER_PERMIT: usize = 1024;

/// The memory that request bodies may take.
#[derive(Debug)]
pub struct BodyMemory {
    max: usize,
    free: Arc<Semaphore>,
}

impl BodyMemory {
    /// The configured memory, or more if the largest request needs it.
    pub fn new(limits: &Limits) -> Self {
        let largest = limits
            .body_bytes
            .saturating_add(json::max_memory(limits.body_bytes));
        let max = limits.buffer_bytes.max(largest);
        let permits = (max / BYTES_PER_PERMIT + 1).min(Semaphore::MAX_PERMITS);
        Self {
            max,
            free: Arc::new(Semaphore::new(permits)),
        }
    }

    #[cfg(test)]
    pub fn free_kib(&self) -> usize {
        self.free.available_permits()
    }

    /// No memory yet, for a request.
    pub fn request(&self) -> Arc<RequestMemory> {
        Arc::new(RequestMemory {
            max: self.max,
            free: Arc::clone(&self.free),
            held: Mutex::default(),
        })
    }
}

/// The memory that a request holds until this value is dropped.
#[derive(Debug)]
pub struct RequestMemory {
    max: usize,
    free: Arc<Semaphore>,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl RequestMemory {
    /// Holds `bytes` from now on, or is refused and holds what it held before.
    pub fn resize(&self, bytes: usize) -> Result<(), Error> {
        let wanted = if bytes <= MAX_UNCOUNTED_BYTES {
            0
        } else {
            bytes.div_ceil(BYTES_PER_PERMIT)
        };
        let mut permit = locked(&self.held);
        let held = permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if wanted <= held {
            drop(
                permit
                    .as_mut()
                    .and_then(|permit| permit.split(held - wanted)),
            );
            return Ok(());
        }
        let more = u32::try_from(wanted - held).ok();
        let more = more.and_then(|more| Arc::clone(&self.free).try_acquire_many_owned(more).ok());
        let more = more.ok_or(Error::Overloaded {
            limit: self.max,
            unit: "bytes of request bodies",
        })?;
        match permit.as_mut() {
            Some(permit) => permit.merge(more),
            None => *permit = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            body_bytes: 1024 * 1024,
            buffer_bytes: 64 * 1024 * 1024,
            ..Limits::default()
        }
    }

    #[test]
    fn requests_hold_memory_until_there_is_none() {
        let memory = BodyMemory::new(&limits());
        let (one, other) = (memory.request(), memory.request());
        one.resize(60 * 1024 * 1024).unwrap();
        insta::assert_snapshot!(other.resize(5 * 1024 * 1024).unwrap_err(), @"expected at most 67108864 bytes of request bodies at once, but found more; try again in a moment");
        other.resize(MAX_UNCOUNTED_BYTES).unwrap();
        one.resize(40 * 1024 * 1024).unwrap();
        other.resize(5 * 1024 * 1024).unwrap();
        assert!(one.resize(60 * 1024 * 1024).is_err());
        drop(other);
        one.resize(60 * 1024 * 1024).unwrap();
        drop(one);
        memory.request().resize(64 * 1024 * 1024).unwrap();
    }

    #[test]
    fn the_largest_request_fits() {
        let limits = Limits {
            buffer_bytes: 1,
            ..limits()
        };
        let largest = limits.body_bytes + json::max_memory(limits.body_bytes);
        BodyMemory::new(&limits).request().resize(largest).unwrap();
    }
}
