//! Compares the peak memory for the models' longest texts with this process's limit.

use kivu_base::config::resident_memory;

/// A model's longest text.
pub struct LongestText<'a> {
    pub model: &'a str,
    pub tokens: usize,
    /// Memory that it takes while it runs.
    pub bytes: u64,
}

/// Logs a warning for each model whose longest text does not fit: shorter ones do, so this is not an error.
pub fn warn<'a>(longest: impl Iterator<Item = LongestText<'a>>, limit: Option<u64>) {
    let (Some(limit), Ok(used)) = (limit, resident_memory()) else {
        return;
    };
    for LongestText {
        model,
        tokens,
        bytes,
    } in longest
    {
        if let Some(fitting) = fitting(limit.saturating_sub(used), bytes, tokens) {
            tracing::warn!(
                model,
                "a text of {tokens} tokens takes {} MB in addition to the {} MB in use, but the memory limit is {} MB; \
                 set `limits.tokens` to {fitting} or less, or raise the limit",
                bytes >> 20,
                used >> 20,
                limit >> 20,
            );
        }
    }
}

/// Token count that fits into `free` bytes, if a text with `tokens` tokens takes more.
fn fitting(free: u64, bytes: u64, tokens: usize) -> Option<u64> {
    // Memory is proportional to the tokens, apart from a small constant.
    (bytes > free).then(|| (u128::from(free) * tokens as u128 / u128::from(bytes)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_do_not_fit_are_found() {
        assert_eq!(fitting(400, 400, 8192), None);
        assert_eq!(fitting(100, 400, 8192), Some(2048));
        assert_eq!(fitting(0, 400, 8192), Some(0));
    }
}
