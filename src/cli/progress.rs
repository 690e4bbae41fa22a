//! Progress on a terminal; one line a stage where there is none.

use std::{io::IsTerminal, io::Write, sync::Mutex};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{build::Progress, repository::Meter};

/// Shows the stages of a build, or bytes going by, on standard error.
#[derive(Debug)]
pub(super) struct Terminal {
    bar: Mutex<Option<ProgressBar>>,
    is_terminal: bool,
}

impl Terminal {
    pub(super) fn new() -> Self {
        Self { bar: Mutex::default(), is_terminal: std::io::stderr().is_terminal() }
    }
}

impl Progress for Terminal {
    fn stage(&self, name: &str, steps: usize) {
        if !self.is_terminal {
            // Progress that cannot be shown is no reason to stop.
            let _ = writeln!(std::io::stderr(), "{name}");
            return;
        }
        self.show(name, steps as u64, "{msg:24} {wide_bar} {pos}/{len} {eta:>4}");
    }

    fn step(&self) {
        self.advance(1);
    }
}

impl Meter for Terminal {
    fn begin(&self, what: &str, bytes: u64) {
        if self.is_terminal {
            self.show(what, bytes, "{msg:24} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta:>4}");
        } else {
            // As above.
            let _ = writeln!(std::io::stderr(), "{what}: {:.1} MB", bytes as f64 / 1e6);
        }
    }

    fn advance(&self, bytes: u64) {
        if let Ok(current) = self.bar.lock()
            && let Some(bar) = current.as_ref()
        {
            bar.inc(bytes);
        }
    }
}

impl Terminal {
    fn show(&self, what: &str, length: u64, template: &str) {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(length).with_style(style).with_message(what.to_owned());
        bar.tick();
        if let Ok(mut current) = self.bar.lock() {
            *current = Some(bar);
        }
    }
}
