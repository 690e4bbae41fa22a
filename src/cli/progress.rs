//! Progress on a terminal; one line a stage where there is none.

use std::{
    io::{IsTerminal, Write},
    sync::Mutex,
    time::Instant,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{batch::Watcher, build::Progress, repository::Meter};

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

/// The steps of a bar whose length is not known in rows.
const STEPS: u64 = 10_000;

/// Shows the rows of a job, their rate and the remaining time on standard error.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Nothing where there is no terminal.
    shown: Mutex<Option<Shown>>,
}

#[derive(Debug)]
struct Shown {
    bar: ProgressBar,
    started: Instant,
    /// The rows of earlier processes, which say nothing of the rate of this one.
    before: u64,
}

impl Watcher for Rows {
    fn begin(&self, input: &str, rows: u64) {
        let mut error = std::io::stderr();
        if !error.is_terminal() {
            // Progress that cannot be shown is no reason to stop.
            let _ = match rows {
                0 => writeln!(error, "batch: {input}"),
                rows => writeln!(error, "batch: {input}, continued after {rows} rows"),
            };
            return;
        }
        let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} % {eta:>4}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(STEPS).with_style(style).with_message(input.to_owned());
        bar.tick();
        if let Ok(mut shown) = self.shown.lock() {
            *shown = Some(Shown { bar, started: Instant::now(), before: rows });
        }
    }

    fn advance(&self, rows: u64, share: Option<f64>) {
        let Ok(shown) = self.shown.lock() else { return };
        let Some(Shown { bar, started, before }) = shown.as_ref() else { return };
        let rate = rows.saturating_sub(*before) as f64 / started.elapsed().as_secs_f64().max(1e-3);
        bar.set_message(format!("{rows} rows, {rate:.0} a second"));
        match share {
            Some(share) => bar.set_position((share * STEPS as f64) as u64),
            None => bar.tick(),
        }
        // What earlier processes did says nothing of the remaining time.
        if rows == *before {
            bar.reset_eta();
        }
    }
}

impl Rows {
    /// Removes the bar, so that results stand alone.
    pub(super) fn clear(&self) {
        if let Ok(shown) = self.shown.lock()
            && let Some(Shown { bar, .. }) = shown.as_ref()
        {
            bar.finish_and_clear();
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
