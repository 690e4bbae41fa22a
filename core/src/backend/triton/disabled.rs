//! Replaces this module in WebAssembly, where no model runs on a fleet.

#![expect(
    missing_docs,
    reason = "documented in the module that this one replaces"
)]

use std::{convert::Infallible, sync::Arc};

use super::{Deadline, RemoteBackend};
use kivu_base::error::Result;

/// Cannot be created.
#[derive(Debug)]
pub struct Fleet(Infallible);

impl Fleet {
    pub fn is_available(&self) -> bool {
        match self.0 {}
    }

    pub fn deadline(&self, _: Deadline) -> Deadline {
        match self.0 {}
    }

    pub fn check_at_start<T>(&self, _: Result<T>) -> Result<()> {
        match self.0 {}
    }

    pub async fn connect(&self, _: Deadline) -> Result<Arc<dyn RemoteBackend>> {
        match self.0 {}
    }
}
