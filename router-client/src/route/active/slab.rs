/// Values by small numbers, which are reused (a slab).
#[derive(Debug)]
pub(super) struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// The largest number ever assigned, plus one.
    pub(super) fn numbers(&self) -> usize {
        self.values.len()
    }

    /// Inserts a value and returns its number. Callers limit the number of values to far below 2^32.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop()
            && let Some(place) = self.at(number)
        {
            debug_assert!(place.is_none(), "{number} was free");
            *place = Some(value);
            return number;
        }
        self.values.push(Some(value));
        u32::try_from(self.values.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.values.get(usize::try_from(number).ok()?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.at(number)?.as_mut()
    }

    /// Removes and returns the value with this number. Frees the memory when the slab becomes empty.
    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.at(number)?.take()?;
        self.free.push(number);
        if self.len() == 0 {
            // Frees the memory that a burst needed.
            *self = Self::default();
        }
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.values).filter_map(|(number, value)| Some((number, value.as_ref()?)))
    }

    fn at(&mut self, number: u32) -> Option<&mut Option<T>> {
        self.values.get_mut(usize::try_from(number).ok()?)
    }
}
