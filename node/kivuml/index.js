"use strict";

const { classes } = require("./errors.js");
const { load } = require("./load.js");
const { Model } = require("./model.js");

module.exports = { ...classes, Model, load };
