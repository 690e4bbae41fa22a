//! The models that a request uses.

use std::sync::OnceLock;

use kivu::model::{Model, ModelLease};

/// The models that a request uses; they stay loaded until its end.
#[derive(Debug, Default)]
pub struct UsedModels {
    first: OnceLock<ModelLease>,
    others: OnceLock<Box<Self>>,
}

impl UsedModels {
    /// Keeps a model for the request.
    pub fn keep(&self, lease: ModelLease) -> &Model {
        let first = self.first.get_or_init(|| lease.clone());
        if first.is_same(&lease) {
            first
        } else {
            self.others.get_or_init(Box::default).keep(lease)
        }
    }
}
