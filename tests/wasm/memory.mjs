// Modules with little memory.

/** A module whose memory has at most `pages` pages of 64 KiB. */
export function withMaximum(module, pages) {
  const leb = (value) => (value < 128 ? [value] : [(value & 127) | 128, ...leb(value >>> 7)]);
  const read = (place) => {
    let [value, shift] = [0, 0];
    for (;;) {
      const byte = module[place++];
      value |= (byte & 127) << shift;
      if (byte < 128) return [value, place];
      shift += 7;
    }
  };
  for (let place = 8; place < module.length; ) {
    const id = module[place];
    const [size, start] = read(place + 1);
    if (id === 5) {
      const [minimum] = read(start + 2);
      const section = [1, 1, ...leb(minimum), ...leb(pages)];
      return Buffer.concat([module.subarray(0, place), Buffer.from([5, ...leb(section.length), ...section]), module.subarray(start + size)]);
    }
    place = start + size;
  }
  throw new Error("expected a memory, but found none");
}
