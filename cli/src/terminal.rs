//! Output: results on standard output, errors and progress on standard error.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::Mutex,
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use kivu::{Error, Result, locked, repository::Meter};
use kivu_compiler::Progress as BuildProgress;
use kivu_jobs as batch;

/// Writes a line to standard output. A closed pipe, as after `| head`, is not an error.
pub fn print(line: &str) -> Result<()> {
    is_read(line).map(drop)
}

/// Writes a line to standard output; whether somebody reads it.
pub fn is_read(line: &str) -> Result<bool> {
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::io("cannot write to standard output")(error)),
    }
}

/// The option for a command's output format.
#[derive(Clone, Copy, Debug, Args)]
pub struct Format {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Format {
    /// Writes a value as JSON or as lines to standard output.
    pub fn print<T: Serialize + ?Sized>(
        self,
        value: &T,
        lines: impl FnOnce(&T) -> Vec<String>,
    ) -> Result<ExitCode> {
        let failed = |error| Error::model_because("cannot serialize the output", error);
        let lines = match self.json {
            true => vec![serde_json::to_string_pretty(value).map_err(failed)?],
            false => lines(value).iter().map(|line| visible(line)).collect(),
        };
        lines.iter().try_for_each(|line| print(line))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Escapes control characters, with which others' files and names could write to the terminal. Lines and tabs stay.
fn visible(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for c in line.chars() {
        match c {
            '\r' => {}
            c if c.is_control() && !matches!(c, '\n' | '\t') => shown.extend(c.escape_debug()),
            c => shown.push(c),
        }
    }
    shown
}

/// Writes a line to standard error, if it is open.
pub fn print_aside(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints an error with its causes, and on a separate line what to do about it.
pub fn print_error(error: &Error) {
    let message = error.with_causes();
    print_aside(&format!("error: {}", message.problem()));
    if let Some(hint) = message.hint() {
        print_aside(&format!("hint: {hint}"));
    }
}

/// Progress bar steps for a job with an unknown number of rows.
const STEPS: u64 = 10_000;

/// A progress bar on standard error; one line per stage if that is not a terminal.
#[derive(Debug, Default)]
pub struct Progress {
    bar: Mutex<Option<ProgressBar>>,
    /// Rows processed earlier by other processes; excluded from this one's rate.
    rows_before: Mutex<u64>,
}

impl Progress {
    fn begin(&self, title: &str, plain: &str, length: u64, template: &str) {
        if !io::stderr().is_terminal() {
            return print_aside(plain);
        }
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(length)
            .with_style(style)
            .with_message(title.to_owned());
        bar.tick();
        *locked(&self.bar) = Some(bar);
    }

    fn update(&self, update: impl FnOnce(&ProgressBar)) {
        locked(&self.bar).as_ref().map(update);
    }

    pub fn clear(&self) {
        self.update(ProgressBar::finish_and_clear);
    }
}

impl BuildProgress for Progress {
    fn stage(&self, name: &str, steps: usize) {
        self.begin(
            name,
            name,
            steps as u64,
            "{msg:24} {wide_bar} {pos}/{len} {eta:>4}",
        );
    }

    fn step(&self) {
        self.update(|bar| bar.inc(1));
    }
}

impl Meter for Progress {
    fn begin(&self, name: &str, bytes: u64) {
        let template = "{msg:24} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta:>4}";
        self.begin(
            name,
            &format!("{name}: {:.1} MB", bytes as f64 / 1e6),
            bytes,
            template,
        );
    }

    fn advance(&self, bytes: u64) {
        self.update(|bar| bar.inc(bytes));
    }
}

impl batch::Watcher for Progress {
    fn begin(&self, input: &str, rows: u64) {
        let plain = match rows {
            0 => format!("batch: {input}"),
            rows => format!("batch: {input}, continued after {rows} rows"),
        };
        // The bar does not say it.
        if rows > 0 && io::stderr().is_terminal() {
            print_aside(&plain);
        }
        *locked(&self.rows_before) = rows;
        self.begin(
            input,
            &plain,
            STEPS,
            "{msg} {wide_bar} {percent:>3} % {eta:>4}",
        );
    }

    fn advance(&self, rows: u64, share: Option<f64>) {
        let before = *locked(&self.rows_before);
        self.update(|bar| {
            let rate = rows.saturating_sub(before) as f64 / bar.elapsed().as_secs_f64().max(1e-3);
            bar.set_message(format!("{rows} rows, {rate:.0} per second"));
            match share {
                Some(share) => bar.set_position((share * STEPS as f64) as u64),
                None => bar.tick(),
            }
            // The remaining time is estimated from this process's rows alone.
            if rows == before {
                bar.reset_eta();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown() {
        let line = "a\u{1b}[31m\u{9b}b\r\n\tc\u{7}";
        assert_eq!(visible(line), "a\\u{1b}[31m\\u{9b}b\n\tc\\u{7}");
    }
}
