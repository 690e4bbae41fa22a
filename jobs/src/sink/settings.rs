//! What a job stores in its sink.

use std::{fmt, sync::Arc};

use super::interface::SinkUrl;
use kivu::error::{Error, Result, quoted};

/// The columns and vectors that a job stores in a sink.
#[derive(Clone, Debug)]
pub struct SinkSettings {
    /// The sink.
    pub url: Arc<dyn SinkUrl>,
    /// Column with the rows' ids.
    pub id: String,
    /// Columns that are stored with the vectors.
    pub metadata: Vec<String>,
}

/// Default for [`SinkSettings::id`].
const ID: &str = "id";

impl SinkSettings {
    /// Checks settings from the command line or a rule.
    pub fn new(url: Arc<dyn SinkUrl>, id: Option<&str>, metadata: &[String]) -> Result<Self> {
        let id = id.unwrap_or(ID).to_owned();
        let taken = url.taken(&id);
        for (place, name) in metadata.iter().enumerate() {
            let is_taken = taken.contains(&name.as_str());
            if name.is_empty() || is_taken || metadata[..place].contains(name) {
                return Err(Error::config(format!(
                    "expected different names in `metadata`, none of them the id's or the vector's, but found {}",
                    quoted(metadata)
                )));
            }
        }
        Ok(Self {
            url,
            id,
            metadata: metadata.to_vec(),
        })
    }

    /// All columns that are read: the id's first.
    pub fn columns(&self) -> Vec<String> {
        [&self.id]
            .into_iter()
            .chain(&self.metadata)
            .cloned()
            .collect()
    }
}

impl fmt::Display for SinkSettings {
    /// Identifies what is stored, and where.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} id={:?} metadata={:?}",
            self.url, self.id, self.metadata
        )
    }
}
