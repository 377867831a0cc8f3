//! Kernel templates of a bundle's experts, and what they say of times.

use estream_hexagon::{ExpertShape, Refused, Template};
use estream_schemas::manifest::ExpertLayer;
use estream_schemas::profile::{Profile, Source};

/// The member of a profile that is computed here.
const CAPACITY: &str = "services.capacity";

/// Layers whose experts are alike to a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) layers: Vec<u64>,
    /// Or why no kernel is for them.
    pub(crate) shape: Result<ExpertShape, Refused>,
}

/// The shape classes of a bundle, in the order of their first layers.
pub(crate) fn classes(layers: &[ExpertLayer]) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for layer in layers {
        let shape = ExpertShape::of(layer);
        match classes.iter_mut().find(|class| class.shape == shape) {
            Some(class) => class.layers.push(layer.layer),
            None => classes.push(Class {
                layers: vec![layer.layer],
                shape,
            }),
        }
    }
    classes
}

/// Gives times of records of `record_bytes` the capacity that the profile's VTCM has for these classes, where the
/// profile has none; says what the user should know of that.
pub(crate) fn add_capacity(
    profile: &mut Profile,
    record_bytes: u64,
    classes: &[Class],
) -> Option<String> {
    let vtcm_bytes = profile.limits.vtcm_bytes?;
    let services = profile.services.iter_mut();
    let mut services = services
        .filter(|service| service.record_bytes == record_bytes && service.capacity.is_none())
        .peekable();
    services.peek()?;
    let template = |class: &Class| {
        let shape = class.shape.as_ref().map_err(Clone::clone)?;
        Ok(Template::new(shape, vtcm_bytes)?.capacity())
    };
    let capacities: Result<Vec<u64>, Refused> = classes.iter().map(template).collect();
    // One list of times is for all layers, so the least counts.
    match capacities.map(|capacities| capacities.into_iter().min()) {
        Ok(least) => {
            let capacity = least?;
            services.for_each(|service| service.capacity = Some(capacity));
            let text = format!("the VTCM planner, of {vtcm_bytes} bytes of VTCM");
            let source = Source {
                text,
                assumed: false,
            };
            profile.sources.0.insert(CAPACITY.to_owned(), source);
            Some(format!(
                "an invocation takes at most {capacity} rows of an expert: what {vtcm_bytes} bytes of VTCM hold"
            ))
        }
        Err(refused) => Some(format!(
            "times are as if an invocation took any number of rows, since there is no template: {refused}"
        )),
    }
}
