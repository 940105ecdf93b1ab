"""From names of images to arrays for the door. Knows neither flags nor privacy."""
