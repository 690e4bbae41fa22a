//! Progress on a terminal; one line a stage where there is none.

use std::{io::IsTerminal, io::Write, sync::Mutex};

use indicatif::{ProgressBar, ProgressStyle};

use crate::build::Progress;

/// Shows the stages of a build on standard error.
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
        let style = ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len} {eta:>4}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(steps as u64).with_style(style).with_message(name.to_owned());
        bar.tick();
        if let Ok(mut current) = self.bar.lock() {
            *current = Some(bar);
        }
    }

    fn step(&self) {
        if let Ok(current) = self.bar.lock()
            && let Some(bar) = current.as_ref()
        {
            bar.inc(1);
        }
    }
}
