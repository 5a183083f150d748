//! The recorder: a core whose every input is written down before it's given.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Deref;

use super::fields::Writer;
use super::saw::Saw;
use super::{input, limits, CORE, END, HEADER};
use crate::{
    AdapterId, AdapterSpec, CommitError, Config, ConfigError, Core, Event, PageInError, Refusal, RequestId,
    RequestSpec, SampledToken, StepError, TenantId, TenantSpec,
};

/// Whether a recorder still writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// It was never asked to.
    Off,
    /// Yes.
    Open,
    /// The limit was reached. The end is missing, not the beginning: nothing can be replayed from the middle.
    Full,
    /// The sink refused a line. None is written after a gap.
    Broken,
}

/// A closure as a sink: it's called with one line at a time.
#[derive(Clone, Copy, Debug)]
pub struct Sink<F>(pub F);

impl<F: FnMut(&str)> Write for Sink<F> {
    fn write_str(&mut self, line: &str) -> std::fmt::Result {
        (self.0)(line);
        Ok(())
    }
}

/// A core and the log of its inputs. It has the core's calls, and reads go straight to the core; as nobody gets the core
/// itself to change, nothing happens to it that isn't written.
///
/// The sink gets each line in one piece. Whatever becomes of the log, the core goes on.
#[derive(Clone, Debug)]
pub struct Recorder<W> {
    core: Core,
    sink: W,
    log: Log,
    /// Bytes that the log may still have.
    left: u64,
    /// The line being made; its memory is kept.
    line: String,
}

impl<W: Write> Recorder<W> {
    /// A core with these limits, and a log of at most `bytes_max` bytes; its first two lines and its end are always
    /// written.
    pub fn new(config: Config, sink: W, bytes_max: Option<u64>) -> Result<Self, ConfigError> {
        let mut recorder = Self::off(config, sink)?;
        recorder.log = Log::Open;
        recorder.line.push_str(HEADER);
        recorder.line.push('\n');
        recorder.send();
        let mut config = recorder.core.config().clone();
        recorder.write(CORE, |fields| limits::core(fields, &mut config));
        let written = u64::MAX - recorder.left;
        recorder.left = bytes_max.unwrap_or(u64::MAX).saturating_sub(written);
        Ok(recorder)
    }

    /// A core of which nothing is written.
    pub fn off(config: Config, sink: W) -> Result<Self, ConfigError> {
        Ok(Self { core: Core::new(config)?, sink, log: Log::Off, left: u64::MAX, line: String::new() })
    }

    /// Does it still write?
    pub fn log(&self) -> Log {
        self.log
    }

    /// Where the lines go.
    pub fn sink(&self) -> &W {
        &self.sink
    }

    /// Where the lines go, to take them out.
    pub fn sink_mut(&mut self) -> &mut W {
        &mut self.sink
    }

    /// The core.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Core and sink, each by itself.
    pub fn into_parts(self) -> (Core, W) {
        (self.core, self.sink)
    }

    /// Writes a remark, one line for each of its lines: who an adapter is, what the host was.
    pub fn remark(&mut self, text: &str) {
        for remark in text.lines() {
            self.write("#", |fields| {
                fields.0.push(' ');
                fields.0.push_str(remark);
            });
        }
    }

    fn write(&mut self, name: &str, fields: impl FnOnce(&mut Writer<'_>)) {
        if self.log != Log::Open {
            return;
        }
        self.line.clear();
        self.line.push_str(name);
        fields(&mut Writer(&mut self.line));
        self.line.push('\n');
        self.send();
    }

    fn send(&mut self) {
        let end = END.len() as u64 + 1;
        if self.line.len() as u64 + end > self.left {
            self.log = Log::Full;
            self.line.clear();
            self.line.push_str(END);
            self.line.push('\n');
        }
        match self.sink.write_str(&self.line) {
            Ok(()) => self.left = self.left.saturating_sub(self.line.len() as u64),
            Err(_) => self.log = Log::Broken,
        }
        self.line.clear();
    }

    /// As [`Core::register`].
    pub fn register(&mut self, mut spec: AdapterSpec) -> Result<AdapterId, Refusal> {
        self.write("register", |fields| input::register(fields, &mut spec));
        self.core.register(spec)
    }

    /// As [`Core::set_tenant`].
    pub fn set_tenant(&mut self, mut tenant: TenantId, mut spec: TenantSpec) -> Result<(), Refusal> {
        self.write("set_tenant", |fields| input::set_tenant(fields, &mut tenant, &mut spec));
        self.core.set_tenant(tenant, spec)
    }

    /// As [`Core::pin`].
    pub fn pin(&mut self, mut now: u64, mut adapter: AdapterId, mut pinned: bool) -> Result<(), Refusal> {
        self.write("pin", |fields| input::pin(fields, &mut now, &mut adapter, &mut pinned));
        self.core.pin(now, adapter, pinned)
    }

    /// As [`Core::prewarm`].
    pub fn prewarm(&mut self, now: u64, adapter: AdapterId) -> Result<(), Refusal> {
        self.about_adapter("prewarm", now, adapter);
        self.core.prewarm(now, adapter)
    }

    /// As [`Core::unregister`].
    pub fn unregister(&mut self, now: u64, adapter: AdapterId) {
        self.about_adapter("unregister", now, adapter);
        self.core.unregister(now, adapter);
    }

    /// As [`Core::add`].
    pub fn add(&mut self, mut now: u64, mut spec: RequestSpec) -> Result<(), Refusal> {
        self.write("add", |fields| input::add(fields, &mut now, &mut spec));
        self.core.add(now, spec)
    }

    /// As [`Core::abort`].
    pub fn abort(&mut self, mut now: u64, mut request: RequestId) {
        self.write("abort", |fields| input::about_request(fields, &mut now, &mut request));
        self.core.abort(now, request);
    }

    /// As [`Core::step`]; what it made is written too.
    pub fn step(&mut self, mut now: u64, plan: &mut [i32]) -> Result<Option<u64>, StepError> {
        let length = plan.len();
        let mut buffer =
            (length != self.core.plan_layout().length()).then(|| u32::try_from(length).unwrap_or(u32::MAX));
        self.write("step", |fields| input::step(fields, &mut now, &mut buffer));
        let made = self.core.step(now, plan);
        if self.log == Log::Open {
            Saw::new(&self.core, plan, made).write(&mut self.line);
            self.send();
        }
        made
    }

    /// As [`Core::commit`].
    pub fn commit(
        &mut self,
        mut now: u64,
        mut number: u64,
        sampled: &[SampledToken],
    ) -> Result<(), CommitError> {
        let mut tokens = Cow::Borrowed(sampled);
        self.write("commit", |fields| input::commit(fields, &mut now, &mut number, &mut tokens));
        self.core.commit(now, number, sampled)
    }

    /// As [`Core::commit_failed`].
    pub fn commit_failed(&mut self, mut now: u64, mut number: u64) -> Result<(), CommitError> {
        self.write("commit_failed", |fields| input::about_plan(fields, &mut now, &mut number));
        self.core.commit_failed(now, number)
    }

    /// As [`Core::page_in_done`].
    pub fn page_in_done(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        self.about_adapter("page_in_done", now, adapter);
        self.core.page_in_done(now, adapter)
    }

    /// As [`Core::page_in_failed`].
    pub fn page_in_failed(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        self.about_adapter("page_in_failed", now, adapter);
        self.core.page_in_failed(now, adapter)
    }

    /// As [`Core::page_in_dropped`].
    pub fn page_in_dropped(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        self.about_adapter("page_in_dropped", now, adapter);
        self.core.page_in_dropped(now, adapter)
    }

    /// As [`Core::page_in_reached`].
    pub fn page_in_reached(
        &mut self,
        mut now: u64,
        mut adapter: AdapterId,
        mut layers: u32,
    ) -> Result<(), PageInError> {
        self.write("page_in_reached", |fields| {
            input::page_in_reached(fields, &mut now, &mut adapter, &mut layers);
        });
        self.core.page_in_reached(now, adapter, layers)
    }

    /// As [`Core::arrived`].
    pub fn arrived(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        self.about_adapter("arrived", now, adapter);
        self.core.arrived(now, adapter)
    }

    /// As [`Core::fetch_failed`].
    pub fn fetch_failed(&mut self, now: u64, adapter: AdapterId) -> Result<(), PageInError> {
        self.about_adapter("fetch_failed", now, adapter);
        self.core.fetch_failed(now, adapter)
    }

    fn about_adapter(&mut self, name: &str, mut now: u64, mut adapter: AdapterId) {
        self.write(name, |fields| input::about_adapter(fields, &mut now, &mut adapter));
    }

    /// As [`Core::drain_events`]: no input, nothing is written.
    pub fn drain_events(&mut self, into: &mut Vec<Event>) {
        self.core.drain_events(into);
    }
}

/// Reads go to the core. There is no way to a core that can be changed.
impl<W> Deref for Recorder<W> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}
