//! A manager's counts as OpenMetrics text.
//!
//! Nothing is maintained for this. The text is made from one [`Reading`] of what is counted anyway, on the thread that
//! asks for it. The metrics library only writes the text; its own counters are not used (see [`counts`]).

mod families;
mod reading;

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;

use crate::error::{Error, Result, Status};
use crate::manager::Manager;
use crate::process::Process;

use families::{About, FAMILIES, MANAGER, PREFIX};
use reading::Reading;

pub use families::document;

impl Manager {
    /// Its metrics, and the process's in the text of manager 0.
    pub fn metrics_text(&self) -> Result<String> {
        let reading = Arc::new(Reading::of(self, Process::current()?));
        let mut registry = Registry::with_prefix(PREFIX);
        let whose = (MANAGER.into(), self.id().to_string().into());
        let ours = registry.sub_registry_with_label(whose);
        ours.register_collector(Box::new(Families {
            reading: reading.clone(),
            about: &[About::Manager, About::Endpoint],
        }));
        if reading.process.is_some() {
            registry.register_collector(Box::new(Families { reading, about: &[About::Process] }));
        }
        let mut out = String::new();
        text::encode(&mut out, &registry)
            .map_err(|_| Error::new(Status::Internal, "a metric does not fit the format of the text"))?;
        Ok(out)
    }
}

/// Some families of a reading.
#[derive(Debug)]
struct Families {
    reading: Arc<Reading>,
    about: &'static [About],
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut wanted = FAMILIES.iter().filter(|family| self.about.contains(&family.about()));
        wanted.try_for_each(|family| family.encode(&mut encoder, &self.reading))
    }
}
