//! Sample texts, one per line.

/// Texts of mixed kinds and lengths, like real traffic.
pub const SENTENCES: &str = include_str!("../sentences.txt");

/// Texts for models that read Portuguese.
pub(super) const PORTUGUESE: &str = include_str!("../sentences-pt.txt");
