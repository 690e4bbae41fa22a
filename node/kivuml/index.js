"use strict";

const { classes } = require("./errors.js");
const { Model, load } = require("./model.js");

module.exports = { ...classes, Model, load };
